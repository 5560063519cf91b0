"""Libraries in C that are preloaded into a process, to let it see what seldom happens."""

import subprocess
from pathlib import Path


def preloaded(name: str, folder: Path) -> Path:
    """Compile `name`.c into `folder`; return what LD_PRELOAD is to be set to."""
    source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return library
