"""`et demo` in a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

from test_demo import network


@contextmanager
def running(make_folder):
    """A running demo: its address, port, process id and temporary folder. Afterwards it has ended well.

    It has printed no error, and has left no file behind in its home, its working directory or the temporary folder.
    """
    folders = {name: make_folder(name) for name in ("files", "home", "work", "temporary")}
    model, plain = folders["files"] / "model.safetensors", folders["files"] / "plain.safetensors"
    network().save(model)
    network(1, layers=(), chart=None).save(plain)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"demo --no-browser --port {port} --model {model} --plain {plain}".split()
    environment = {**os.environ, "HOME": str(folders["home"]), "TMPDIR": str(folders["temporary"])}
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    with subprocess.Popen(
        [sys.executable, "-m", "equivariant_transformers", *command],
        cwd=folders["work"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            assert f"{address}/" in process.stdout.readline(), process.stderr.read()
            yield SimpleNamespace(address=address, port=port, pid=process.pid, temporary=folders["temporary"])
        finally:
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=60)[1]
    assert (process.returncode, errors) == (0, ""), errors
    assert [path for name in ("home", "work", "temporary") for path in folders[name].iterdir()] == []
