"""Forked services are what started ones would be."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest
from execnet.gateway_io import popen_args
from execnet.xspec import XSpec

from tests.support import zygote
from tests.support.zygote import Zygote


@pytest.fixture
def forking() -> Iterator[None]:
    """Services are forked while the test runs."""
    own = Zygote.started("services.cli.commands.serve")
    own.wait()
    restore = zygote.install({zygote.COMMANDS: own})
    yield
    restore()
    own.close()


@pytest.mark.usefixtures("forking")
def test_a_forked_service_is_a_child_with_its_own_command_line_environment_and_status() -> None:
    command = [sys.executable, "-P", "-m", "services.cli", "carbon", "serve", "--config", "/none"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OF_ITS_OWN": "1"},
        start_new_session=True,
    )
    seen = psutil.Process(child.pid)
    parent, session, arguments, environment = (
        seen.ppid(), os.getsid(child.pid), seen.cmdline(), seen.environ()
    )  # fmt: skip
    said, _ = child.communicate(timeout=50)

    assert (parent, session) == (os.getpid(), child.pid)
    assert arguments == command
    assert environment["OF_ITS_OWN"] == "1"
    assert (child.returncode, b"/none" in said) == (2, True)


def test_a_zygote_that_ends_after_an_order_is_an_error_and_no_pid() -> None:
    """A pid of -1 would be every process: to end such a child would end the machine's."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def end() -> None:
        its.recv(2**18)
        its.close()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(ChildProcessError, match="forked nothing"):
        Zygote(ours).fork({"command": []}, [0, 1, 2])
    thread.join()
    ours.close()


def test_workers_of_pytest_are_recognised_by_how_they_are_started() -> None:
    """Another command line of theirs would cost each worker an import of everything."""
    assert zygote.module_of(popen_args(XSpec("popen"))) == zygote.TESTS
