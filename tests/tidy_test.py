"""The three habits that are checked by machine: who may include whom, where hardware conditionals may stand, and the
nine waypoints of "Life of a request"."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder -> folders it may include, besides itself. The longest matching prefix counts.
MAY_INCLUDE = {
    "common": [],
    "common/proto": ["common"],
    "kernels": ["common"],
    "model/checkpoint": ["common"],
    "model/text": ["common", "model/checkpoint"],
    "model": ["common", "common/proto", "kernels", "model/checkpoint", "model/text"],
    "eval": ["common", "common/proto", "kernels", "model", "model/checkpoint", "model/text"],
    "transport": ["common"],
    "prefill": ["common", "common/proto", "kernels", "model", "model/checkpoint", "model/text", "transport"],
    "decode": ["common", "common/proto", "kernels", "model", "model/checkpoint", "model/text", "transport"],
    "gateway": ["common", "common/proto", "model/checkpoint", "model/text"],
    "cli": ["common", "common/proto", "kernels", "model", "model/checkpoint", "model/text", "transport", "prefill",
            "decode", "gateway", "eval"],
}

HARDWARE = re.compile(
    r"__x86_64__|__aarch64__|__AVX|__SSE|__FMA__|__CUDA|__builtin_cpu_supports|__builtin_ia32|immintrin\.h"
    r"|SLUICE_CUDA|cpuid\.h|cuda_runtime")
HARDWARE_ALLOWED = re.compile(
    r"^(kernels/\w+_(avx2|avx512|simd)\w*\.(cc|h)|kernels/isa\.cc|kernels/\w+\.cu|common/crc32c\.cc"
    r"|common/thread_pool\.cc|tests/.*)$")

FOLDERS_WITH_README = ["common", "kernels", "model", "eval", "transport", "prefill", "decode", "gateway", "cli", "deploy", "tests"]


def sources(*suffixes):
    for folder in {f.split("/")[0] for f in MAY_INCLUDE} | {"tests"}:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def folder_of(path):
    parent = path.rsplit("/", 1)[0]
    while parent not in MAY_INCLUDE:
        if "/" not in parent:
            return None
        parent = parent.rsplit("/", 1)[0]
    return parent


class Tidy(unittest.TestCase):
    def test_includes_point_down(self):
        wrong = []
        for path, text in sources(".h", ".cc", ".cu"):
            here = folder_of(path)
            if path.startswith("tests/"):
                continue
            for target in re.findall(r'^#include "([^"]+)"', text, re.M):
                there = folder_of(target)
                if there is None or "/" not in target:
                    continue  # a library's own header in quotes
                if there != here and there not in MAY_INCLUDE[here]:
                    wrong.append(f"{path} includes {target}: {here} may include {MAY_INCLUDE[here]}")
        self.assertEqual(wrong, [])

    def test_first_include_is_the_own_header(self):
        wrong = []
        for path, text in sources(".cc"):
            own = path[:-3] + ".h"
            includes = re.findall(r'^#include [<"]([^">]+)[>"]', text, re.M)
            if not path.startswith("tests/") and (ROOT / own).exists() and includes and includes[0] != own:
                wrong.append(f"{path} includes {includes[0]} before {own}")
        self.assertEqual(wrong, [])

    def test_hardware_conditionals_stand_where_they_may(self):
        wrong = [f"{path}: {match.group(0)}" for path, text in sources(".h", ".cc")
                 for match in [HARDWARE.search(text)] if match and not HARDWARE_ALLOWED.match(path)]
        self.assertEqual(wrong, [])

    def test_the_nine_waypoints_are_there_once_each_and_in_the_architecture(self):
        steps = {}
        for path, text in sources(".h", ".cc"):
            for number in re.findall(r"^\s*// Life of a request, step (\d):", text, re.M):
                steps.setdefault(int(number), []).append(path)
        self.assertEqual({n: len(paths) for n, paths in steps.items()}, {n: 1 for n in range(1, 10)}, steps)
        architecture = (ROOT / "ARCHITECTURE.md").read_text()
        for number, paths in sorted(steps.items()):
            line = re.search(rf"^{number}\. .*$", architecture, re.M)
            self.assertIsNotNone(line, f"ARCHITECTURE.md has no step {number}")
            self.assertIn(paths[0].rsplit(".", 1)[0], line.group(0))

    def test_every_folder_has_its_page(self):
        self.assertEqual([f for f in FOLDERS_WITH_README if not (ROOT / f / "README.md").is_file()], [])


if __name__ == "__main__":
    unittest.main()
