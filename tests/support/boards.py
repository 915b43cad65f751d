"""Real GPU boards as drivers print them: 42 product names."""

from services.kit.hardware.boards import DriverReading
from services.kit.units import BYTES_PER_MIB

_ROWS: tuple[tuple[str, int, tuple[int, int], int, int, float | None], ...] = (
    # name, memory MiB, compute capability, multiprocessors, highest clock MHz, default limit W
    ("NVIDIA A100-SXM4-40GB", 40960, (8, 0), 108, 1410, 400),
    ("NVIDIA A100-PCIE-40GB", 40960, (8, 0), 108, 1410, 250),
    ("NVIDIA A100-SXM4-80GB", 81920, (8, 0), 108, 1410, 400),
    ("NVIDIA A100 80GB PCIe", 81920, (8, 0), 108, 1410, 300),
    ("NVIDIA A100-SXM-64GB", 65536, (8, 0), 124, 1395, 440),
    ("NVIDIA A800-SXM4-80GB", 81920, (8, 0), 108, 1410, 400),
    ("NVIDIA A800 80GB PCIe", 81920, (8, 0), 108, 1410, 300),
    ("NVIDIA A30", 24576, (8, 0), 56, 1440, 165),
    ("NVIDIA H100 80GB HBM3", 81559, (9, 0), 132, 1980, 700),
    ("NVIDIA H100 PCIe", 81559, (9, 0), 114, 1755, 350),
    ("NVIDIA H100 NVL", 95830, (9, 0), 132, 1785, 400),
    ("NVIDIA H800", 81559, (9, 0), 132, 1980, 700),
    ("NVIDIA H20", 97871, (9, 0), 78, 1980, 500),
    ("NVIDIA H20-3e", 143771, (9, 0), 78, 1980, 500),
    ("NVIDIA H200", 143771, (9, 0), 132, 1980, 700),
    ("NVIDIA H200 NVL", 143771, (9, 0), 132, 1785, 600),
    ("NVIDIA GH200 480GB", 97871, (9, 0), 132, 1980, 900),
    ("NVIDIA GH200 144G HBM3e", 146831, (9, 0), 132, 1980, 900),
    ("NVIDIA B200", 183359, (10, 0), 148, 1965, 1000),
    ("NVIDIA GB200", 189471, (10, 0), 152, 2062, 1200),
    ("NVIDIA B300 SXM6 AC", 275040, (10, 3), 148, 1920, 1100),
    ("NVIDIA GB300", 284208, (10, 3), 152, 2070, 1400),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0), 188, 2430, 600),
    ("NVIDIA GB10", 122570, (12, 1), 48, 2418, None),
    ("NVIDIA L4", 23034, (8, 9), 58, 2040, 72),
    ("NVIDIA L40", 46068, (8, 9), 142, 2490, 300),
    ("NVIDIA L40S", 46068, (8, 9), 142, 2520, 350),
    ("NVIDIA GeForce RTX 4090", 24564, (8, 9), 128, 3105, 450),
    ("NVIDIA A10", 23028, (8, 6), 72, 1695, 150),
    ("NVIDIA A10G", 23028, (8, 6), 80, 1710, 300),
    ("NVIDIA A40", 46068, (8, 6), 84, 1740, 300),
    ("NVIDIA RTX A6000", 49140, (8, 6), 84, 2100, 300),
    ("Tesla V100-PCIE-16GB", 16384, (7, 0), 80, 1380, 250),
    ("Tesla V100-SXM2-16GB", 16384, (7, 0), 80, 1530, 300),
    ("Tesla V100-SXM2-32GB", 32768, (7, 0), 80, 1530, 300),
    ("Tesla V100S-PCIE-32GB", 32768, (7, 0), 80, 1597, 250),
    ("Tesla T4", 15360, (7, 5), 40, 1590, 70),
    ("Tesla P4", 7680, (6, 1), 20, 1531, 75),
    ("Tesla P40", 23040, (6, 1), 30, 1531, 250),
    ("GRID A100-10C", 10240, (8, 0), 108, 1410, None),
    ("NVIDIA A100-40C", 40960, (8, 0), 108, 1410, None),
    ("GRID A100D-80C", 81920, (8, 0), 108, 1410, None),
)
READINGS = tuple(
    DriverReading(
        product_name=name,
        memory_bytes=memory_mib * BYTES_PER_MIB,
        compute_capability=capability,
        sm_count=sm_count,
        max_clock_mhz=clock_mhz,
        limit_w=limit_w,
    )
    for name, memory_mib, capability, sm_count, clock_mhz, limit_w in _ROWS
)
