"""Fetches libtorch into the ignored folder `.libtorch/` of the checkout, where `.cargo/config.toml` points to.

In: wheels of a Python package index, through `pip download` (the user's own pip settings hold).
Out: `.libtorch/{include,lib,licenses,build-version,skein-setup.json}`; the last marks a complete set-up.

Everything happens in `.libtorch.<pid>.tmp`, which is renamed at the very end, under a lock: a run that was killed
leaves nothing half done, and of two runs the second waits and then uses what the first has made.
A `LIBTORCH` of the user's own wins: then nothing is fetched, only its version is checked.
"""

import contextlib
import ctypes
import fcntl
import fnmatch
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple

VERSION = "2.13.0"
FOLDER = ".libtorch"
STAMP = "skein-setup.json"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class SetupError(Exception):
    """What is wrong, where, and what to do next."""


@dataclass(frozen=True)
class Wheel:
    """One wheel and what is kept of it."""

    requirement: str
    # pip's platform tag. With a fixed Python version and ABI the file does not depend on the user's Python.
    platform: str
    # None: not known here, so only pip's own check holds.
    sha256: Optional[str]
    # (path inside the wheel, folder it goes to); a path that ends with "/" means the whole tree.
    keep: Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Recipe:
    """All that one platform needs."""

    wheels: Tuple[Wheel, ...]
    # Paths that must be there at the end.
    needed: Tuple[str, ...]
    # Free space while unpacking: wheels, pip's copy of them, and what is unpacked.
    space_bytes: int
    # None: the index of pip's settings.
    index: Optional[str] = None
    # The CUDA build's libtorch.so links CUDA; an empty one in its place links the CPU libraries alone.
    link_empty_libtorch: bool = False
    tested: bool = False


LINUX_X86_64 = Recipe(
    wheels=(
        Wheel(
            f"torch=={VERSION}",
            "manylinux_2_28_x86_64",
            "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7",
            (
                ("torch/include/", "include/"),
                ("torch/lib/libtorch_cpu.so", "lib/"),
                ("torch/lib/libc10.so", "lib/"),
                ("torch/lib/libgomp.so.1", "lib/"),
            ),
        ),
        # libtorch_cpu.so of this wheel links these two, though nothing of CUDA runs.
        Wheel(
            "nvidia_cuda_runtime==13.0.96",
            "manylinux2014_x86_64",
            "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
            (("nvidia/cu13/lib/libcudart.so.13", "lib/"),),
        ),
        Wheel(
            "nvidia_cuda_cupti==13.0.85",
            "manylinux_2_25_x86_64",
            "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
            (("nvidia/cu13/lib/libcupti.so.13", "lib/"),),
        ),
    ),
    needed=(
        "include/torch/csrc/api/include/torch/torch.h",
        "lib/libtorch_cpu.so",
        "lib/libc10.so",
        "lib/libgomp.so.1",
        "lib/libcudart.so.13",
        "lib/libcupti.so.13",
        "lib/libtorch.so",
    ),
    space_bytes=2_000_000_000,
    link_empty_libtorch=True,
    tested=True,
)

LINUX_AARCH64 = Recipe(
    wheels=(
        Wheel(
            f"torch=={VERSION}",
            "manylinux_2_28_aarch64",
            None,
            (("torch/include/", "include/"), ("torch/lib/*.so*", "lib/"), ("torch.libs/*", "lib/")),
        ),
    ),
    needed=("include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so", "lib/libc10.so", "lib/libtorch.so"),
    space_bytes=2_000_000_000,
    # The package index's own wheel is a CUDA build on this platform.
    index=PYTORCH_CPU_INDEX,
)

MACOS_ARM64 = Recipe(
    wheels=(
        Wheel(
            f"torch=={VERSION}",
            "macosx_14_0_arm64",
            None,
            (("torch/include/", "include/"), ("torch/lib/*.dylib", "lib/")),
        ),
    ),
    needed=(
        "include/torch/csrc/api/include/torch/torch.h",
        "lib/libtorch_cpu.dylib",
        "lib/libc10.dylib",
        "lib/libtorch.dylib",
    ),
    space_bytes=1_500_000_000,
)


def recipe_for(system: str, machine: str) -> Recipe:
    """The recipe of a platform, by the names that `platform.system()` and `platform.machine()` give it."""
    recipes = {
        ("Linux", "x86_64"): LINUX_X86_64,
        ("Linux", "aarch64"): LINUX_AARCH64,
        ("Darwin", "arm64"): MACOS_ARM64,
    }
    recipe = recipes.get((system, machine))
    if recipe is None:
        known = ", ".join(f"{s} {m}" for s, m in recipes)
        raise SetupError(
            f"no libtorch is known for {system} {machine} (only for {known}): build or fetch libtorch {VERSION} for it, "
            "set LIBTORCH to its folder, and run this again"
        )
    return recipe


def say(message: str) -> None:
    """One line to the terminal, at once."""
    print(f"setup: {message}", flush=True)


# --- a LIBTORCH of the user's own -----------------------------------------------------------------------------------


def version_of(libtorch: Path) -> Optional[str]:
    """The version of an unpacked libtorch, or None when the folder does not look like one."""
    with contextlib.suppress(OSError):
        return (libtorch / "build-version").read_text().split("+")[0].strip()
    for header in ("include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"):
        with contextlib.suppress(OSError):
            text = (libtorch / header).read_text()
            parts = [re.search(rf"define TORCH_VERSION_{part} +(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
            if all(parts):
                return ".".join(part.group(1) for part in parts)
    return None


def check_own_libtorch(libtorch: Path) -> None:
    """Refuses a LIBTORCH that the build would stumble over."""
    if not libtorch.is_absolute():
        raise SetupError(f"LIBTORCH={libtorch} is relative, and each crate is built in its own folder: give the whole path")
    wanted = ".".join(VERSION.split(".")[:2])
    found = version_of(libtorch)
    if found is None:
        raise SetupError(
            f"LIBTORCH={libtorch} is no libtorch folder (no build-version and no include/torch/headeronly/version.h "
            "in it): correct it, or unset LIBTORCH to have libtorch fetched"
        )
    if not (found + ".").startswith(wanted + "."):
        raise SetupError(
            f"LIBTORCH={libtorch} is version {found}, needed is {wanted}.x: point LIBTORCH to such a version, "
            "or unset it to have libtorch fetched"
        )
    say(f"using libtorch {found} of LIBTORCH={libtorch}")


# --- what is there --------------------------------------------------------------------------------------------------


def identity(recipe: Recipe) -> dict:
    """What a set-up was made from; two set-ups with the same identity are the same."""
    return {
        "libtorch": VERSION,
        "wheels": {w.requirement: w.sha256 or w.platform for w in recipe.wheels},
    }


def sizes(folder: Path) -> dict:
    """The size in bytes of each library."""
    return {p.name: p.stat().st_size for p in sorted((folder / "lib").iterdir())}


def is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether `folder` holds exactly what `recipe` makes."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        return stamp["made_from"] == identity(recipe) and stamp["lib_bytes"] == sizes(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


# --- one set-up at a time -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(root: Path):
    """Holds the set-up lock of a checkout. The lock goes with the process, however that ends."""
    with open(root / f"{FOLDER}.lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            say(f"another set-up of this checkout is running (process {lock.read().strip() or 'unknown'}): waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def remove(path: Path) -> None:
    """Removes a folder or a link to one."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(root: Path) -> None:
    """Removes work folders of runs that were killed. Under the lock none of them can be in use."""
    for stale in root.glob(f"{FOLDER}.*.tmp"):
        say(f"removing {stale.name}, left by a run that was interrupted")
        remove(stale)


# --- fetching and unpacking -----------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Makes the child end when its parent is killed (Linux; elsewhere it ends when its folder is gone)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def index_arguments(index: Optional[str]) -> list:
    """pip's arguments for an index: the address of one, or a folder of wheels."""
    if not index:
        return []
    if re.match(r"https?://", index):
        return ["--index-url", index]
    return ["--no-index", "--find-links", index]


def download(wheel: Wheel, folder: Path, index: Optional[str]) -> Path:
    """Downloads one wheel into `folder` and checks its hash."""
    say(f"downloading {wheel.requirement} ({wheel.platform})")
    folder.mkdir()
    pip_tmp = folder / "pip"
    pip_tmp.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--platform", wheel.platform]
    command += [*index_arguments(index), "--dest", str(folder), wheel.requirement]
    # pip's own temporary files belong into our folder too: /tmp may be small, and here they are found and removed.
    environment = {**os.environ, "TMPDIR": str(pip_tmp), "PIP_REQUIRE_VIRTUALENV": "0"}
    code = subprocess.run(command, env=environment, preexec_fn=die_with_parent).returncode
    found = sorted(folder.glob("*.whl"))
    if code != 0 or len(found) != 1:
        raise SetupError(
            f"pip could not download {wheel.requirement} (its message is above): check the network and pip's index "
            "settings, or set SKEIN_TORCH_INDEX to the address of another index or to a folder of wheels"
        )
    if wheel.sha256 is not None:
        got = sha256_of(found[0])
        if got != wheel.sha256:
            raise SetupError(
                f"{found[0].name} is not the file it should be: sha256 is {got}, expected {wheel.sha256}. "
                "If the download was damaged, `python3 -m pip cache purge` and running this again mends it; "
                "if it stays so, the index holds another file"
            )
    return found[0]


def sha256_of(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def destination(name: str, keep: Tuple[Tuple[str, str], ...]) -> Optional[str]:
    """Where a wheel's file goes, or None when it is not kept."""
    if ".." in name.split("/") or name.startswith("/") or name.endswith("/"):
        return None
    for pattern, folder in keep:
        if pattern.endswith("/") and name.startswith(pattern):
            return folder + name[len(pattern) :]
        if name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern):
            return folder + name.rsplit("/", 1)[-1]
    return None


def unpack(archive: Path, keep: Tuple[Tuple[str, str], ...], target: Path) -> None:
    """Unpacks the kept files of a wheel, and its licences into one text beside them."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            kept = [(info, destination(info.filename, keep)) for info in wheel.infolist()]
            kept = [(info, place) for info, place in kept if place is not None]
            total_bytes = sum(info.file_size for info, _ in kept)
            say(f"unpacking {len(kept)} files, {total_bytes / 1e6:.0f} MB, of {archive.name}")
            for info, place in kept:
                path = target / place
                path.parent.mkdir(parents=True, exist_ok=True)
                with wheel.open(info) as source, open(path, "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
            licences = target / "licenses"
            licences.mkdir(exist_ok=True)
            with open(licences / f"{'-'.join(archive.name.split('-')[:2])}.txt", "wb") as text:
                for info in wheel.infolist():
                    if ".dist-info/licenses/" in info.filename and not info.is_dir():
                        text.write(b"\n==== " + info.filename.encode() + b" ====\n\n" + wheel.read(info))
    except (zipfile.BadZipFile, EOFError) as error:
        raise SetupError(f"{archive.name} is damaged ({error}): run this again") from error


def link_empty_libtorch(lib: Path, scratch: Path) -> None:
    """Makes a libtorch.so that only links the CPU libraries, for `-ltorch` of the build."""
    compiler = os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), "c++")
    source = scratch / "empty.cpp"
    source.write_text("")
    command = [*compiler.split(), "-shared", "-fPIC", "-o", str(lib / "libtorch.so"), str(source), "-Wl,--no-as-needed"]
    command += [f"-L{lib}", "-ltorch_cpu", "-lc10", "-Wl,-soname,libtorch.so", "-Wl,-rpath,$ORIGIN"]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise SetupError(f"no C++ compiler ({compiler}: {error}): install one, or name yours with CXX") from error
    if done.returncode != 0:
        raise SetupError(f"the C++ compiler could not link libtorch.so:\n{done.stderr}")


def make(root: Path, work: Path, recipe: Recipe, index: Optional[str]) -> None:
    """Fills the work folder with a complete libtorch, stamp included."""
    free_bytes = shutil.disk_usage(root).free
    if free_bytes < recipe.space_bytes:
        raise SetupError(
            f"{root} has {free_bytes / 1e9:.1f} GB free, the set-up needs {recipe.space_bytes / 1e9:.1f} GB while it "
            "unpacks: make room, or set LIBTORCH to a libtorch that is already there"
        )
    made = work / "made"
    made.mkdir(parents=True)
    for number, wheel in enumerate(recipe.wheels):
        folder = work / f"wheel{number}"
        unpack(download(wheel, folder, index), wheel.keep, made)
        remove(folder)
    if recipe.link_empty_libtorch:
        link_empty_libtorch(made / "lib", work)
    missing = [path for path in recipe.needed if not (made / path).is_file()]
    if missing:
        raise SetupError(f"the wheels lack {', '.join(missing)}: the index holds another build of torch {VERSION}")
    (made / "build-version").write_text(VERSION + "\n")
    stamp = {"made_from": identity(recipe), "lib_bytes": sizes(made)}
    (made / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")


def put_in_place(root: Path, work: Path) -> None:
    """Renames the finished folder to its place. One that is not complete makes way."""
    target = root / FOLDER
    if target.exists() or target.is_symlink():
        target.rename(work / "replaced")
    (work / "made").rename(target)


def set_up(root: Path, recipe: Recipe, index: Optional[str]) -> None:
    """Makes `.libtorch/` under `root` unless it is there."""
    target = root / FOLDER
    if is_complete(target, recipe):
        return
    with locked(root):
        remove_leftovers(root)
        if is_complete(target, recipe):
            say("the other set-up has finished; using what it made")
            return
        if not recipe.tested:
            say(f"this platform ({platform.system()} {platform.machine()}) is untested: its wheel is checked by pip alone")
        work = root / f"{FOLDER}.{os.getpid()}.tmp"
        try:
            make(root, work, recipe, index or recipe.index)
            put_in_place(root, work)
        finally:
            remove(work)
    say(f"libtorch {VERSION} is in {target}")


def main() -> int:
    """Sets up the checkout that this file lies in."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(__file__).resolve().parent.parent
    own = os.environ.get("LIBTORCH")
    try:
        if own and Path(own).resolve() != (root / FOLDER).resolve():
            check_own_libtorch(Path(own))
        else:
            set_up(root, recipe_for(platform.system(), platform.machine()), os.environ.get("SKEIN_TORCH_INDEX"))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run this again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
