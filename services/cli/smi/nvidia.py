"""Lists in the format of `nvidia-smi`, so that programs which parse those parse these."""

from collections.abc import Iterable, Iterator

from services.gpuagent.survey import SurveyedGpu

_MIB_PER_GIB = 1024
_INSTANCES_WIDTH = 55
_PROFILES_WIDTH = 77


def gpus_and_devices(gpus: Iterable[SurveyedGpu]) -> Iterator[str]:
    """Yield the lines of `nvidia-smi -L`."""
    for gpu in gpus:
        if gpu.gauges is None:
            yield f"GPU {gpu.index}: lost (it has fallen off the bus: reset it or reboot)"
            continue
        yield f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})"
        for device in gpu.devices:
            yield f"  MIG {device.name:<12}Device {device.index:>2}: (UUID: {device.uuid})"


def gpu_instances(gpus: Iterable[SurveyedGpu]) -> Iterator[str]:
    """Yield the lines of `nvidia-smi mig -lgi`."""
    rows = [
        f"|{gpu.index:>4}  {'MIG ' + found.name:<18}{found.profile_id:>4}{found.id:>9}"
        f"{found.start:>11}:{found.size}     |"
        for gpu in gpus
        for found in gpu.instances
    ]
    if not rows:
        yield "No GPU instances found: Not Found"
        return
    yield _line("-", _INSTANCES_WIDTH, "+")
    yield "| GPU instances:                                        |"
    yield "| GPU   Name             Profile  Instance   Placement  |"
    yield "|                          ID       ID       Start:Size |"
    yield _line("=", _INSTANCES_WIDTH, "|")
    for row in rows:
        yield row
        yield _line("-", _INSTANCES_WIDTH, "+")


def profiles(gpus: Iterable[SurveyedGpu]) -> Iterator[str]:
    """Yield the lines of `nvidia-smi mig -lgip`."""
    found = [(gpu.index, profile) for gpu in gpus for profile in gpu.profiles]
    if not found:
        yield "No MIG-supported devices found."
        return
    yield _line("-", _PROFILES_WIDTH, "+")
    yield f"| {'GPU instance profiles:':<{_PROFILES_WIDTH - 1}}|"
    yield "| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |"
    yield "|                              Free/Total   GiB              CE    JPEG  OFA  |"
    yield _line("=", _PROFILES_WIDTH, "|")
    for index, profile in found:
        copy, decoder, encoder, jpeg, ofa = profile.engines
        yield (
            f"|{index:>4}  {'MIG ' + profile.name:<17}{profile.id:>3}     "
            f"{profile.free}/{profile.total}        {profile.memory_mib / _MIB_PER_GIB:<11.2f}"
            f"{'Yes' if profile.p2p else 'No':<7}{profile.sm_count:<7}{decoder:<6}{encoder}   |"
        )
        yield f"|{'':61}{copy:<6}{jpeg:<6}{ofa}   |"
        yield _line("-", _PROFILES_WIDTH, "+")


def placements(gpus: Iterable[SurveyedGpu]) -> Iterator[str]:
    """Yield the lines of `nvidia-smi mig -lgipp`."""
    for gpu in gpus:
        for profile in gpu.profiles:
            plural = "s" if len(profile.starts) > 1 else " "
            starts = ",".join(map(str, profile.starts))
            yield (
                f"GPU {gpu.index:>2} Profile ID {profile.id:>2} "
                f"Placement{plural}: {{{starts}}}:{profile.size}"
            )


def _line(fill: str, width: int, end: str) -> str:
    return f"{end}{fill * width}{end}"
