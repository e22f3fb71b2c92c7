"""The folder of `./run dist` runs from anywhere. Needs a built binary: SKEIN_BINARY names it (`./run test` sets it)."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

SETUP = Path(__file__).resolve().parent
sys.path.insert(0, str(SETUP))
import dist  # noqa: E402

BINARY = os.environ.get("SKEIN_BINARY")


@unittest.skipUnless(BINARY, "SKEIN_BINARY does not name a built skein")
class DistTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = dist.gather(Path(BINARY).resolve(), Path(scratch.name))

    def test_a_copy_of_it_starts_elsewhere_without_any_environment(self):
        dist.check(self.folder)

    def test_a_library_that_is_not_in_it_is_noticed(self):
        away = self.folder / "lib/libc10.so"
        aside = self.folder / "libc10.so.aside"
        away.rename(aside)
        try:
            with self.assertRaisesRegex(dist.DistError, "does not find libc10.so in its own folder"):
                dist.check(self.folder)
        finally:
            aside.rename(away)

    def test_it_holds_a_job_the_licences_and_what_to_do(self):
        names = {path.name for path in self.folder.iterdir()}
        self.assertEqual(names, {"skein", "lib", "licenses", "digits.toml", "README.txt"})
        self.assertRegex((self.folder / "README.txt").read_text(), r"glibc 2\.\d+ or newer")


if __name__ == "__main__":
    unittest.main()
