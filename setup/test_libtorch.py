"""The set-up of libtorch against a package index of our own, with tiny wheels: killed half-way, two at once, bad files.

The index is an HTTP server of this process that can hold a download at its half, so that "half-way" is a state that
the test waits for, not a moment that it hopes for.
"""

import contextlib
import hashlib
import http.server
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile
from pathlib import Path
from unittest import mock

SETUP = Path(__file__).resolve().parent
sys.path.insert(0, str(SETUP))
import libtorch  # noqa: E402

DEADLINE_S = 120
TORCH = "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
CUDART = "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.whl"

# Runs set_up as a process of its own. With "unpack" it stops in the middle of the first unpacked file.
DRIVER = """
import json, signal, sys
root, index, wheels, stop = json.loads(sys.argv[1])
sys.path.insert(0, {setup!r})
from pathlib import Path
import libtorch
if stop == "unpack":
    def half(source, file, length):
        file.write(source.read(10))
        file.flush()
        print("HALF UNPACKED", flush=True)
        signal.pause()
    libtorch.shutil.copyfileobj = half
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
wheels = tuple(libtorch.Wheel(r, p, h, tuple(map(tuple, k))) for r, p, h, k in wheels)
recipe = libtorch.Recipe(wheels, needed=("lib/libtorch_cpu.so", "lib/libcudart.so.13"), space_bytes=1, tested=True)
try:
    libtorch.set_up(Path(root), recipe, index)
except libtorch.SetupError as error:
    sys.exit(str(error))
"""


def make_wheel(folder: Path, name: str, files: dict) -> str:
    """Writes a wheel that pip accepts and returns its hash."""
    project, version = name.split("-")[:2]
    info = f"{project}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {'-'.join(name[:-4].split('-')[2:])}\n".encode(),
        f"{info}/licenses/LICENSE": f"licence of {project}".encode(),
    }
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files))
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


class Index(http.server.ThreadingHTTPServer):
    """A package index that can hold downloads of one file at their half."""

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.folder = folder
        self.hold = False
        self.half_sent = threading.Event()
        self.release = threading.Event()
        self.downloads = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class IndexHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/simple/"):
            project = self.path.split("/")[2].replace("-", "_")
            names = [p.name for p in self.server.folder.glob("*.whl") if p.name.startswith(project + "-")]
            self.answer("".join(f'<a href="/files/{n}">{n}</a>' for n in names).encode(), "text/html")
        else:
            name = self.path.rsplit("/", 1)[-1]
            self.server.downloads.append(name)
            self.answer((self.server.folder / name).read_bytes(), "application/octet-stream", self.server.hold)

    def answer(self, body: bytes, kind: str, hold: bool = False):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # A killed pip closes the connection under us; that is the test's intent.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if hold:
                self.server.half_sent.set()
                self.server.release.wait(DEADLINE_S)
            self.wfile.write(body[len(body) // 2 :])


class SetUpTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name) / "checkout"
        self.wheels = Path(scratch.name) / "wheels"
        self.root.mkdir()
        self.wheels.mkdir()
        noise = random.Random(7).randbytes(1 << 20)
        torch = {"torch/lib/libtorch_cpu.so": noise, "torch/include/torch/torch.h": b"// torch", "torch/lib/libtorch_cuda.so": noise}
        self.hashes = {
            TORCH: make_wheel(self.wheels, TORCH, torch),
            CUDART: make_wheel(self.wheels, CUDART, {"nvidia/cu13/lib/libcudart.so.13": b"cudart"}),
        }
        self.index = Index(self.wheels)
        self.addCleanup(self.index.server_close)
        self.addCleanup(self.index.shutdown)
        self.addCleanup(self.index.release.set)

    def start(self, stop: str = "", index: str = "") -> subprocess.Popen:
        wheels = [
            ("torch==2.13.0", "manylinux_2_28_x86_64", self.hashes[TORCH], [["torch/include/", "include/"], ["torch/lib/libtorch_cpu.so", "lib/"]]),
            ("nvidia_cuda_runtime==13.0.96", "manylinux2014_x86_64", self.hashes[CUDART], [["nvidia/cu13/lib/libcudart.so.13", "lib/"]]),
        ]
        argument = json.dumps([str(self.root), index or self.index.address, wheels, stop])
        # The user's own pip settings and proxies must not lead away from the index under test.
        environment = {k: v for k, v in os.environ.items() if not re.match(r"PIP_|.*_proxy$", k, re.IGNORECASE)}
        environment.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1", PIP_RETRIES="0", PIP_PROGRESS_BAR="off")
        command = [sys.executable, "-c", DRIVER.format(setup=str(SETUP)), argument]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def end():
            process.kill()
            process.wait()
            process.stdout.close()

        self.addCleanup(end)
        return process

    def finish(self, process: subprocess.Popen) -> str:
        output, _ = process.communicate(timeout=DEADLINE_S)
        return output

    def wait_for_line(self, process: subprocess.Popen, part: str) -> None:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if part in line:
                return
        self.fail(f"ended without saying {part!r}: {''.join(seen)}")

    def assert_complete(self):
        made = self.root / ".libtorch"
        self.assertEqual((made / "lib/libtorch_cpu.so").stat().st_size, 1 << 20)
        self.assertEqual((made / "lib/libcudart.so.13").read_bytes(), b"cudart")
        self.assertEqual((made / "include/torch/torch.h").read_bytes(), b"// torch")
        self.assertFalse((made / "lib/libtorch_cuda.so").exists())
        self.assertIn("licence of torch", (made / "licenses/torch-2.13.0.txt").read_text())
        self.assertEqual(self.leftovers(), [])

    def leftovers(self) -> list:
        return sorted(path.name for path in self.root.glob(".libtorch.*.tmp"))

    def assert_a_rerun_completes(self):
        again = self.start()
        output = self.finish(again)
        self.assertEqual(again.returncode, 0, output)
        self.assertIn("left by a run that was interrupted", output)
        self.assert_complete()

    def test_a_fresh_checkout_gets_only_what_is_kept(self):
        process = self.start()
        self.assertEqual(self.finish(process) and process.returncode, 0)
        self.assert_complete()

    def test_a_folder_of_wheels_serves_as_index(self):
        process = self.start(index=str(self.wheels))
        output = self.finish(process)
        self.assertEqual(process.returncode, 0, output)
        self.assert_complete()
        self.assertEqual(self.index.downloads, [])

    def test_a_complete_set_up_is_used_again_without_a_download(self):
        self.finish(self.start())
        self.index.downloads.clear()
        process = self.start()
        self.finish(process)
        self.assertEqual((process.returncode, self.index.downloads), (0, []))

    def test_a_library_that_was_cut_short_is_fetched_again(self):
        self.finish(self.start())
        os.truncate(self.root / ".libtorch/lib/libtorch_cpu.so", 1000)
        self.finish(self.start())
        self.assert_complete()

    def test_a_kill_during_the_download_leaves_nothing_half_done(self):
        self.index.hold = True
        process = self.start()
        self.assertTrue(self.index.half_sent.wait(DEADLINE_S))
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        self.assertFalse((self.root / ".libtorch").exists())
        self.assertEqual(len(self.leftovers()), 1)
        self.index.hold = False
        self.index.release.set()
        self.assert_a_rerun_completes()

    def test_a_kill_during_unpacking_leaves_nothing_half_done(self):
        process = self.start(stop="unpack")
        self.wait_for_line(process, "HALF UNPACKED")
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        self.assertFalse((self.root / ".libtorch").exists())
        self.assertEqual(len(self.leftovers()), 1)
        self.assert_a_rerun_completes()

    def test_a_polite_end_removes_its_work_folder(self):
        process = self.start(stop="unpack")
        self.wait_for_line(process, "HALF UNPACKED")
        process.send_signal(signal.SIGTERM)
        self.finish(process)
        self.assertEqual((process.returncode, self.leftovers()), (143, []))

    def test_the_second_of_two_runs_waits_and_uses_what_the_first_made(self):
        self.index.hold = True
        first = self.start()
        self.assertTrue(self.index.half_sent.wait(DEADLINE_S))
        second = self.start()
        self.wait_for_line(second, f"another set-up of this checkout is running (process {first.pid})")
        self.index.release.set()
        self.finish(first)
        output = self.finish(second)
        self.assertEqual((first.returncode, second.returncode), (0, 0))
        self.assertIn("using what it made", output)
        self.assertEqual(sorted(self.index.downloads), [CUDART, TORCH])
        self.assert_complete()

    def test_another_file_under_the_same_name_is_refused_by_hash(self):
        self.finish(self.start())
        os.remove(self.root / ".libtorch" / libtorch.STAMP)
        got = make_wheel(self.wheels, TORCH, {"torch/lib/libtorch_cpu.so": b"another"})
        process = self.start()
        output = self.finish(process)
        self.assertEqual(process.returncode, 1)
        self.assertIn(f"sha256 is {got}, expected {self.hashes[TORCH]}", output)
        # What was there stays as it was.
        self.assertEqual((self.root / ".libtorch/lib/libtorch_cpu.so").stat().st_size, 1 << 20)
        self.assertEqual(self.leftovers(), [])

    def test_a_wheel_without_the_library_is_named(self):
        self.hashes[TORCH] = make_wheel(self.wheels, TORCH, {"torch/include/torch/torch.h": b""})
        self.assertIn("the wheels lack lib/libtorch_cpu.so", self.finish(self.start()))

    def test_an_index_without_the_wheel_says_what_to_set(self):
        os.remove(self.wheels / TORCH)
        process = self.start()
        self.assertIn("SKEIN_TORCH_INDEX", self.finish(process))
        self.assertEqual((process.returncode, self.leftovers()), (1, []))

    def test_a_damaged_archive_is_an_error_that_names_the_file(self):
        os.truncate(self.wheels / TORCH, 5000)
        with self.assertRaisesRegex(libtorch.SetupError, re.escape(TORCH)), contextlib.redirect_stdout(None):
            libtorch.unpack(self.wheels / TORCH, (("torch/lib/*", "lib/"),), self.root)

    def test_too_little_space_is_said_before_anything_is_fetched(self):
        usage = mock.Mock(free=1)
        with mock.patch("shutil.disk_usage", return_value=usage):
            with self.assertRaisesRegex(libtorch.SetupError, "needs 2.0 GB"):
                libtorch.make(self.root, self.root / "work", libtorch.LINUX_X86_64, self.index.address)
        self.assertEqual(self.index.downloads, [])


class OwnLibtorchTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def write_header(self, minor: int):
        header = self.folder / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        header.write_text(f"#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR {minor}\n#define TORCH_VERSION_PATCH 1\n")

    def test_its_version_is_read_from_the_build_version_or_the_header(self):
        self.assertIsNone(libtorch.version_of(self.folder))
        self.write_header(13)
        self.assertEqual(libtorch.version_of(self.folder), "2.13.1")
        (self.folder / "build-version").write_text("2.13.0+cpu\n")
        self.assertEqual(libtorch.version_of(self.folder), "2.13.0")

    def test_another_version_is_refused_with_the_way_out(self):
        self.write_header(1)
        with self.assertRaisesRegex(libtorch.SetupError, "is version 2.1.1, needed is 2.13.x.*unset"):
            libtorch.check_own_libtorch(self.folder)

    def test_a_folder_that_is_no_libtorch_is_refused(self):
        with self.assertRaisesRegex(libtorch.SetupError, "is no libtorch folder"):
            libtorch.check_own_libtorch(self.folder)

    def test_a_relative_path_is_refused(self):
        with self.assertRaisesRegex(libtorch.SetupError, "give the whole path"):
            libtorch.check_own_libtorch(Path("libtorch"))

    def test_nothing_is_fetched_when_it_fits(self):
        self.write_header(13)
        environment = {**os.environ, "LIBTORCH": str(self.folder), "SKEIN_TORCH_INDEX": str(self.folder)}
        command = [sys.executable, str(SETUP / "libtorch.py")]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0)
        self.assertIn(f"using libtorch 2.13.1 of LIBTORCH={self.folder}", done.stdout)


class RecipeTest(unittest.TestCase):
    def test_paths_that_lead_out_of_the_folder_are_not_kept(self):
        keep = (("torch/include/", "include/"), ("torch/lib/*.so*", "lib/"))
        self.assertEqual(libtorch.destination("torch/include/a/b.h", keep), "include/a/b.h")
        self.assertEqual(libtorch.destination("torch/lib/libgomp.so.1", keep), "lib/libgomp.so.1")
        for name in ("torch/include/../../x", "/torch/lib/a.so", "torch/lib/deep/a.so", "torch/include/", "other/a.so"):
            self.assertIsNone(libtorch.destination(name, keep), name)

    def test_an_unknown_platform_says_how_to_go_on(self):
        with self.assertRaisesRegex(libtorch.SetupError, "Plan9 mips.*set LIBTORCH"):
            libtorch.recipe_for("Plan9", "mips")

    def test_the_empty_libtorch_links_the_cpu_libraries(self):
        with tempfile.TemporaryDirectory() as scratch:
            lib = Path(scratch)
            for name in ("torch_cpu", "c10"):
                subprocess.run(["c++", "-shared", "-o", str(lib / f"lib{name}.so"), "-x", "c++", os.devnull], check=True)
            libtorch.link_empty_libtorch(lib, lib)
            made = (lib / "libtorch.so").read_bytes()
            for name in (b"libtorch_cpu.so", b"libc10.so", b"$ORIGIN"):
                self.assertIn(name, made)


if __name__ == "__main__":
    unittest.main()
