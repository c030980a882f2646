"""ferry_test.py - the module `ferry` beside the program: FERRY_PROGRAM, or what an installed wheel brought."""
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, List, Tuple, Union, get_args, get_origin, get_type_hints

import ferry
import ferry.types


class Folder(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self) -> None:
        before = os.getcwd()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, before)
        os.chdir(folder.name)

    def fake_program(self, code: str) -> None:
        """FERRY_PROGRAM is this code until the test ends."""
        file = pathlib.Path("fake").absolute()
        file.write_text(f"#!{os.path.realpath(sys.executable)}\nimport json, os, signal, sys, time\n{code}")
        file.chmod(0o755)
        before = os.environ.get("FERRY_PROGRAM")
        os.environ["FERRY_PROGRAM"] = str(file)
        self.addCleanup(lambda: os.environ.pop("FERRY_PROGRAM") if before is None
                        else os.environ.__setitem__("FERRY_PROGRAM", before))


class Commands(Folder):
    def test_converts_there_and_back_and_verifies(self) -> None:
        ferry.synth("hf", model="llama", layers=2)
        there = ferry.convert("hf", "megatron", tp=2, pp=2)
        self.assertEqual(there["target"]["layout"], {"tp": 2, "pp": 2, "vpp": 1, "ep": 1, "etp": 2})
        self.assertEqual(there["lossy"], [])
        ferry.convert(pathlib.Path("megatron"), "back", to="hf")
        same = ferry.verify("hf", "back")
        self.assertEqual((same["verdict"], same["exit_code"]), ("identical", 0))
        self.assertEqual(ferry.digest("hf")["digest"]["*"], ferry.digest("megatron")["digest"]["*"])
        self.assertEqual(ferry.inspect("back")["source"]["format"], "hf")
        self.assertIn("llama", [family["family"] for family in ferry.models()["families"]])

    def test_a_plan_writes_nothing(self) -> None:
        ferry.synth("hf", model="llama")
        planned = ferry.plan("hf", "megatron", tp=2)
        self.assertTrue(planned["dry_run"])
        self.assertEqual(planned["target"]["files"], 2)
        self.assertEqual(os.listdir(), ["hf"])

    def test_a_difference_is_a_result(self) -> None:
        ferry.synth("a", model="llama")
        ferry.synth("b", model="llama", seed=2)
        different = ferry.verify("a", "b", ignore=["*norm*", "*.embed_tokens.*"])
        self.assertEqual((different["verdict"], different["exit_code"]), ("different", 1))
        self.assertEqual(different["counts"]["identical"], 0)
        self.assertNotIn("model.norm.weight", str(different["tensors"]))

    def test_a_failure_raises_what_the_program_says(self) -> None:
        with self.assertRaisesRegex(ferry.Error, "nosuch: .*") as caught:
            ferry.inspect("nosuch")
        self.assertEqual(caught.exception.exit_code, 4)
        self.assertEqual(caught.exception.message, str(caught.exception))
        self.assertEqual(caught.exception.result["command"], "inspect")
        with self.assertRaisesRegex(ferry.Error, "--no-such-option") as caught:
            ferry.convert("a", "b", no_such_option=1)
        self.assertEqual(caught.exception.exit_code, 2)

    def test_progress_and_log_are_called(self) -> None:
        ferry.synth("hf", model="llama")
        events: List[ferry.types.Progress] = []
        lines: List[str] = []
        ferry.convert("hf", "megatron", progress=events.append, log=lines.append)
        ferry.verify("hf", "megatron", progress=events.append)
        self.assertEqual([event["event"] for event in events if event["event"] != "progress"], ["done", "done"])
        self.assertEqual(events[0]["what"], "converting")
        self.assertTrue(any(line.startswith("source ") for line in lines), lines)
        self.assertFalse(any(line.startswith("{") for line in lines), lines)

    def test_trains(self) -> None:
        ferry.synth("hf", model="llama", layers=2)
        lines: List[str] = []
        trained = ferry.run(["train"], load="hf", save="trained", mock_data=True, split=[90, 5, 5], seq_length=8,
                            micro_batch_size=1, train_iters=3, lr=1e-3, device="cpu", threads=1, log=lines.append)
        self.assertEqual(trained["iteration"], 3)
        self.assertIn("iteration        1/       3", "\n".join(lines))
        self.assertEqual(ferry.inspect("trained")["source"]["iteration"], 3)

    def test_paths_may_begin_with_dashes(self) -> None:
        ferry.synth("--hf", model="llama")
        self.assertEqual(ferry.inspect("--hf")["source"]["path"], "--hf")

    def test_the_module_runs_as_the_program(self) -> None:
        line = [sys.executable, "-m", "ferry", "--version"]
        version = subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout.decode()
        self.assertRegex(version, r"^ferry \d+\.\d+\.\d+")
        self.assertEqual(subprocess.run([*line[:3], "inspect", "nosuch"], stderr=subprocess.DEVNULL).returncode, 4)


class Options(Folder):
    def words(self, **options: Any) -> List[str]:
        self.fake_program("print(json.dumps({'words': sys.argv[1:]}))")
        words = ferry.run(["train"], **options)["words"]
        self.assertEqual((words[0], words[-1]), ("train", "--json"))
        return list(words[1:-1])

    def test_true_false_and_none(self) -> None:
        self.assertEqual(self.words(dry_run=True, bf16=False, lr=None, seed=0, load=pathlib.Path("x")),
                         ["--dry-run", "--seed=0", "--load=x"])

    def test_lists(self) -> None:
        self.assertEqual(self.words(split=[99, 1], data_path=["a", "b"], allow_config=["x", "y"]),
                         ["--split=99,1", "--data-path", "a", "b", "--allow-config=x", "--allow-config=y"])

    def test_a_keyword_of_python(self) -> None:
        self.assertEqual(self.words(from_="dcp"), ["--from=dcp"])

    def test_the_module_knows_how_options_take_lists(self) -> None:
        """By help: "may be given several times", and NAME... for words."""
        commands = re.findall(r"^  ([a-z]+)  ", self.help(), re.M)
        self.assertGreater(len(commands), 10)
        texts = "".join(self.help(command) for command in commands)
        options = re.findall(r"^  --([a-z0-9-]+)(.*(?:\n {30}.*)*)", texts, re.M)
        repeated = {name for name, text in options if "may be given several times" in " ".join(text.split())}
        words = {name for name, text in options if re.match(r" [^ ,]+( [^ ,]+)*\.\.\.", text)}
        self.assertEqual(repeated, ferry.REPEATED)
        self.assertEqual(words, ferry.WORDS - {"rampup-batch-size"})  # N N N

    def help(self, *command: str) -> str:
        return subprocess.run([ferry.program(), *command, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode()


class Processes(Folder):
    def setUp(self) -> None:
        super().setUp()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def test_much_on_both_outputs_does_not_block(self) -> None:
        self.fake_program("""
for i in range(3000): print("x" * 99, file=sys.stderr); sys.stdout.write(" " * 99)
print(json.dumps({"exit_code": 0}))""")
        self.assertEqual(ferry.run(["verify"]), {"exit_code": 0})

    def test_an_interrupt_reaches_the_program_and_waits_for_it(self) -> None:
        self.fake_program("""
def end(*_): open("saved", "w").close(); sys.exit(130)
signal.signal(signal.SIGTERM, end)
print("ready", file=sys.stderr, flush=True)
time.sleep(60)""")
        with self.assertRaises(KeyboardInterrupt):
            ferry.run(["train"], log=lambda line: os.kill(os.getpid(), signal.SIGINT))
        self.assertTrue(os.path.exists("saved"))

    def test_a_second_interrupt_does_not_wait(self) -> None:
        self.fake_program("""
signal.signal(signal.SIGTERM, lambda *_: open("told", "w").close())
print("ready", file=sys.stderr, flush=True)
while True: time.sleep(60)""")

        ended = threading.Event()

        def interrupt_again() -> None:
            while not os.path.exists("told"):
                time.sleep(0.01)
            while not ended.wait(0.5):  # Python misses a signal right before it waits
                os.kill(os.getpid(), signal.SIGINT)

        def interrupt(_: str) -> None:
            threading.Thread(target=interrupt_again).start()
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            try:
                ferry.run(["train"], log=interrupt)
            finally:
                ended.set()

    def test_an_interrupted_conversion_goes_on(self) -> None:
        ferry.synth("hf", model="llama", layers=8, hidden=2048, sparse=True)
        ended = threading.Event()

        def interrupt_when_writing() -> None:
            staged = pathlib.Path(".megatron.ferry-partial")
            while not sum(path.stat().st_blocks * 512 for path in staged.glob("**/*")) > 10**8:
                if ended.wait(0.002):
                    return
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt_when_writing)
        thread.start()
        try:
            ferry.convert("hf", "megatron", threads=1, journal_every="1MB")
        except KeyboardInterrupt:
            self.assertFalse(os.path.exists("megatron"))
            self.assertGreater(ferry.convert("hf", "megatron", journal_every="1MB")["result"]["resumed_bytes"], 0)
        else:
            self.skipTest("it ended before it was interrupted")
        finally:
            ended.set()
            thread.join()

    def test_a_program_that_dies_is_an_error(self) -> None:
        self.fake_program("sys.stdout.write('{'); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)")
        with self.assertRaisesRegex(ferry.Error, "killed by signal 9") as caught:
            ferry.run(["train"])
        self.assertEqual(caught.exception.exit_code, -9)

    def test_another_rank_prints_nothing(self) -> None:
        self.fake_program("")
        self.assertEqual(ferry.run(["convert"]), {"exit_code": 0})

    def test_no_program_is_told(self) -> None:
        self.fake_program("")
        os.environ["FERRY_PROGRAM"], path = "", os.environ["PATH"]
        os.environ["PATH"] = ""
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        if os.path.exists(os.path.join(os.path.dirname(ferry.__file__), "bin")):
            self.assertEqual(stat.S_IMODE(os.stat(ferry.program()).st_mode) & 0o111, 0o111)
        else:
            with self.assertRaisesRegex(FileNotFoundError, "no program ferry"):
                ferry.program()


class Types(Folder):
    """ferry.types beside what the program prints."""

    def check(self, value: Any, kind: Any, where: str, seen: set) -> None:
        origin, arguments = get_origin(kind), get_args(kind)
        if kind is Any:
            return
        if origin is Union:  # Optional
            if value is not None:
                self.check(value, arguments[0], where, seen)
        elif origin is list:
            self.assertIsInstance(value, list, where)
            for item in value:
                self.check(item, arguments[0], where, seen)
        elif origin is dict:
            self.assertIsInstance(value, dict, where)
            for item in value.values():
                self.check(item, arguments[1], where, seen)
        elif hasattr(kind, "__total__"):  # a TypedDict
            for name, hint in get_type_hints(kind).items():
                if name in value:
                    seen.add((kind.__name__, name))
                    self.check(value[name], hint, f"{where}.{name}", seen)
        else:
            self.assertIsInstance(value, (int, float) if kind is float else kind, where)
            self.assertEqual(isinstance(value, bool), kind is bool, where)

    def test_every_field_has_been_printed_with_its_type(self) -> None:
        events: List[ferry.types.Progress] = []
        types = ferry.types
        answers: List[Tuple[Any, Any]] = [
            (ferry.synth("hf", model="llama", layers=2), types.Synth),
            (ferry.convert("hf", "megatron", tp=2, progress=events.append), types.Convert),
            (ferry.convert("megatron", "other", tp=1, iteration=5, torch_dtype="float16"), types.Convert),
            (ferry.verify("hf", "megatron"), types.Verify),
            (ferry.verify("other", "hf", max_ulp=1, rtol=0.5), types.Verify),
            (ferry.verify("other", "hf"), types.Verify),
            (ferry.verify("hf", "hf", forward=True, seq=4), types.Verify),
            (ferry.verify("hf", "hf", train_steps=1, seq=4), types.Verify),
            (ferry.inspect("megatron", args=True, stats=True), types.Inspect),
            (ferry.models(), types.Models),
        ]
        ferry.synth("different", model="llama", layers=2, seed=2)
        digest = ferry.digest("hf")
        pathlib.Path("list").write_text(json.dumps(digest))
        answers += [(digest, types.Digest), (ferry.digest("different", check="list"), types.Digest)]
        answers.append((ferry.verify("different", "hf"), types.Verify))
        answers += [(event, types.Progress) for event in events]

        seen: set = set()
        for value, kind in answers:
            self.check(value, kind, kind.__name__, seen)
        declared = {(kind.__name__, name) for kind in vars(types).values() if hasattr(kind, "__total__")
                    for name in get_type_hints(kind)}
        self.assertEqual(declared - seen - {("Answer", name) for name in get_type_hints(types.Answer)}, set())


if __name__ == "__main__":
    unittest.main()
