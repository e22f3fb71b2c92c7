"""Makes the folder that runs when it is copied to another machine: `skein`, its libraries, a job file.

In: a built `skein`, the libtorch it was built with (`LIBTORCH`, else `.libtorch/`), `examples/jobs/`.
Out: `dist/skein-<version>-<os>-<arch>/` and the same as `.tar.zst`. The binary looks for its libraries in `lib/` beside
itself first (an rpath that `node/build.rs` sets), so the folder needs no environment.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = "examples/jobs/digits.toml"
# The job takes seconds; beyond this something is wrong.
JOB_DEADLINE_S = 600


class DistError(Exception):
    """What is wrong, where, and what to do next."""


def libraries_of(binary: Path) -> dict:
    """The shared libraries that the loader would take for `binary`, by name; None for one that it does not find."""
    if platform.system() == "Darwin":
        return libraries_on_macos(binary)
    listing = subprocess.run(["ldd", str(binary)], env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, text=True, check=True)
    found = re.findall(r"^\s*(\S+) => (not found|/\S.*?)(?: \(0x[0-9a-f]+\))?$", listing.stdout, re.MULTILINE)
    return {name: None if path == "not found" else Path(path) for name, path in found}


def libraries_on_macos(binary: Path) -> dict:
    """As `libraries_of`, for Mach-O: what is found beside the libraries of libtorch, and theirs in turn."""
    found, open_names = {}, [binary]
    while open_names:
        listing = subprocess.run(["otool", "-L", str(open_names.pop())], stdout=subprocess.PIPE, text=True, check=True)
        for name in re.findall(r"@(?:rpath|loader_path)/(\S+)", listing.stdout):
            if name not in found:
                path = libtorch_folder() / "lib" / name
                found[name] = path if path.exists() else None
                if path.exists():
                    open_names.append(path)
    return found


def libtorch_folder() -> Path:
    """The libtorch that the build used."""
    return Path(os.environ.get("LIBTORCH") or ROOT / ".libtorch").resolve()


def oldest_glibc(files: list) -> str:
    """The oldest glibc that has every symbol version the files name."""
    minors = [0]
    for file in files:
        minors += [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes())]
    return f"2.{max(minors)}"


def version_of(binary: Path) -> str:
    """The version that `skein --version` prints."""
    done = subprocess.run([str(binary), "--version"], env={}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    match = re.match(r"skein (\d+\.\d+\.\d+\S*)", done.stdout)
    if done.returncode != 0 or match is None:
        raise DistError(f"{binary} --version does not print a version: {done.stdout}{done.stderr}")
    return match.group(1)


def readme(version: str, glibc: str) -> str:
    """The text that goes with the folder."""
    system = f"Linux {platform.machine()} with glibc {glibc} or newer and libstdc++ (libstdc++.so.6)"
    if platform.system() == "Darwin":
        system = f"macOS {platform.machine()}"
    return f"""skein {version}

Needs {system}; nothing else. Keep `skein` and `lib/` together; the folder may lie anywhere.

On the first machine:

    ./skein up                     prints the line to type on the others

On every other machine:

    ./skein up --join TOKEN

On any of them, in a second terminal:

    ./skein train digits.toml
    ./skein status

`./skein help` lists the other commands. `licenses/` has the licences of Skein and of the libraries in `lib/`.
"""


def gather(binary: Path, into: Path) -> Path:
    """Makes the folder under `into` and returns it."""
    lib = libtorch_folder() / "lib"
    libraries = libraries_of(binary)
    lost = [name for name, path in libraries.items() if path is None]
    if lost:
        raise DistError(f"{binary} does not find {', '.join(lost)}: run ./run setup, then build again")
    ours = {name: path for name, path in libraries.items() if path.resolve().parent == lib}
    if not ours:
        raise DistError(f"{binary} takes no library from {lib}: it was built with another libtorch; build again")
    version = version_of(binary)
    folder = into / f"skein-{version}-{platform.system().lower()}-{platform.machine()}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    shutil.copy2(binary, folder / "skein")
    for name, path in ours.items():
        shutil.copy2(path, folder / "lib" / name)
    shutil.copy2(ROOT / JOB, folder)
    (folder / "licenses").mkdir()
    for licence in [ROOT / "LICENSE-MIT", ROOT / "LICENSE-APACHE", *(libtorch_folder() / "licenses").glob("*.txt")]:
        shutil.copy2(licence, folder / "licenses")
    files = [folder / "skein", *(folder / "lib").iterdir()]
    (folder / "README.txt").write_text(readme(version, oldest_glibc(files)))
    return folder


def archive(folder: Path) -> Path:
    """Packs the folder as .tar.zst beside it."""
    packed = folder.parent / (folder.name + ".tar.zst")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        tar = Path(scratch) / "folder.tar"
        subprocess.run(["tar", "-cf", str(tar), "-C", str(folder.parent), folder.name], check=True)
        subprocess.run(["zstd", "-q", "-T0", "-10", str(tar), "-o", str(tar) + ".zst"], check=True)
        os.replace(str(tar) + ".zst", packed)
    return packed


def check(folder: Path) -> None:
    """Copies the folder elsewhere and trains its job there, with no environment at all."""
    with tempfile.TemporaryDirectory() as elsewhere:
        copy = Path(shutil.copytree(folder, Path(elsewhere) / "copied folder"))
        version_of(copy / "skein")
        if platform.system() == "Linux":
            check_libraries(libraries_of(copy / "skein"), copy / "lib")
        train(copy, Path(elsewhere) / "home")


def train(copy: Path, home: Path) -> None:
    """Runs a peer out of `copy` and trains the job file beside it to its end."""
    at_home = ["--home", str(home)]
    up = [str(copy / "skein"), "up", "--listen", "127.0.0.1:0", "--no-mdns", *at_home]
    with subprocess.Popen(up, env={}, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as peer:
        try:
            # It prints the line to join with once it can be asked; what comes later fits the pipe.
            said = ""
            while "skein up --join" not in said:
                line = peer.stdout.readline()
                said += line
                if not line:
                    raise DistError(f"the copied skein up ends at once: {said}")
            job = [str(copy / "skein"), "train", Path(JOB).name, *at_home]
            done = subprocess.run(job, env={}, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=JOB_DEADLINE_S)
            if done.returncode != 0 or "model hash: " not in done.stdout:
                raise DistError(f"the copied skein train ends with {done.returncode}: {done.stdout}")
        except subprocess.TimeoutExpired as error:
            raise DistError(f"the copied skein has not trained {Path(JOB).name} within {error.timeout} s") from error
        finally:
            peer.terminate()


def check_libraries(libraries: dict, lib: Path) -> None:
    """Refuses a library that comes from the libtorch of this machine, or that is shipped and not used."""
    lost = [name for name, path in libraries.items() if path is None or (path.parent != lib and is_of_libtorch(name))]
    if lost:
        raise DistError(f"the copied skein does not find {', '.join(lost)} in its own folder")
    idle = {path.name for path in lib.iterdir()} - libraries.keys()
    if idle:
        raise DistError(f"the folder has {', '.join(sorted(idle))}, which skein does not load")


def is_of_libtorch(name: str) -> bool:
    """Whether the libtorch of this build has such a library."""
    return (libtorch_folder() / "lib" / name).exists()


def main() -> int:
    """Command line; `./run dist` calls it."""
    parser = argparse.ArgumentParser(description="make the folder that runs anywhere")
    parser.add_argument("--binary", type=Path, required=True, help="the built skein")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="where the folder is made")
    parser.add_argument("--check", action="store_true", help="copy the folder elsewhere and train a job there")
    arguments = parser.parse_args()
    try:
        folder = gather(arguments.binary.resolve(), arguments.into)
        print(f"dist: {folder}")
        if arguments.check:
            check(folder)
            print("dist: a copy of it trained a job elsewhere, without any environment")
        print(f"dist: {archive(folder)}")
    except (DistError, OSError, subprocess.CalledProcessError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
