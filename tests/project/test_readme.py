"""The commands of the README and of docs/ run, and end as they say.

A console block is run when a comment stands before it. The lines that start with `$ ` are its commands:

    <!-- run -->
    ```console
    $ narrows --version
    narrows 0.1.0
    ```

Options, in any order: `<!-- run: exit=3 shows timeout=120 -->`

- `exit=N`      the last command ends with N (0 where nothing is said); the ones before it always end with 0
- `shows`       the lines below the commands appear in their output, in this order; numbers and widths may differ, and a
                line `...` stands for any lines
- `timeout=S`   seconds that the block may take (300 where nothing is said)
- `slow`        it takes minutes: run by a test of its own, marked so, and not with the rest of its page

A block of any other language is written to a file where the commands below find it, when this stands before it:

    <!-- file: case.yaml -->

The blocks of one file run in order in one folder, so a block can use what an earlier one wrote. `examples/` and
`experiments/` are there as in the checkout, and HOME is an empty folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if page.is_file()]
README_NEEDS_A_COMMAND_FROM_LINE = 20
BLOCK = re.compile(
    r"^<!-- run(?::(?P<options>[^>]*?))? -->\n+```console\n(?P<body>.*?)^```$", flags=re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"^<!-- file: (?P<name>[\w.-]+) -->\n+```\w+\n(?P<body>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FILE_MARK = re.compile(r"^<!-- file\b.*$", flags=re.MULTILINE)
MARK = re.compile(r"^<!-- run\b.*$", flags=re.MULTILINE)
# Numbers, and the bars and blanks that grow with them.
VARIES = re.compile(r"[-+]?\d[\d.,:]*|\s+|[\u2500-\u259f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One console block that is run, as its comment and its lines say."""

    line: int
    commands: tuple[str, ...]
    shown: tuple[str, ...]
    exit_status: int
    shows: bool
    timeout_s: float
    slow: bool = False


def files_of(text: str) -> dict[str, str]:
    """The files that a page shows whole, by name. Raises ValueError for a mark that no block follows."""
    found = {match["name"]: match["body"] for match in FILE.finditer(text)}
    if len(FILE_MARK.findall(text)) != len(found):
        raise ValueError(f"{len(FILE_MARK.findall(text))} comments say 'file'; these name one each: {sorted(found)}")
    return found


def blocks_of(text: str) -> list[Block]:
    """The runnable blocks of a page. Raises ValueError for a mark that no block follows, and for an unknown option."""
    found = [_block(text, match) for match in BLOCK.finditer(text)]
    marks = len(MARK.findall(text))
    if marks != len(found):
        raise ValueError(f"{marks} comments say 'run' and {len(found)} console blocks follow one directly")
    return found


def _block(text: str, match: re.Match[str]) -> Block:
    options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
    lines = match["body"].splitlines()
    block = Block(
        line=text.count("\n", 0, match.start()) + 1,
        commands=tuple(line.removeprefix("$ ") for line in lines if line.startswith("$ ")),
        shown=tuple(line for line in lines if not line.startswith("$ ")),
        exit_status=int(options.pop("exit", "0")),
        shows="shows" in options,
        timeout_s=float(options.pop("timeout", "300")),
        slow="slow" in options,
    )
    for flag in ("shows", "slow"):
        options.pop(flag, None)
    if options or not block.commands:
        raise ValueError(f"line {block.line}: no command in the block, or options unknown: {sorted(options)}")
    return block


def first_missing_line(shown: tuple[str, ...], output: str) -> str | None:
    """The first shown line that the output does not hold after the ones before it; None where all are there."""
    said = iter([_without_what_varies(line) for line in output.splitlines()])
    for line in shown:
        wanted = _without_what_varies(line)
        if wanted in ("", "...") or wanted in said:  # `in` moves the iterator on: that is what keeps the order
            continue
        return line
    return None


def _without_what_varies(line: str) -> str:
    return VARIES.sub(lambda found: "#" if found[0].strip() else " ", line.strip())


def _run(block: Block, folder: Path) -> None:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    bin_folder = str(Path(sys.executable).parent)
    variables = os.environ | {"HOME": str(home), "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}
    variables["PATH"] = bin_folder + os.pathsep + variables["PATH"]
    said = folder / "output.txt"
    said.write_text("", encoding="utf-8")
    for number, command in enumerate(block.commands, start=1):
        status = _status_of(command, said, folder, variables, block.timeout_s)
        wanted = block.exit_status if number == len(block.commands) else 0
        assert status == wanted, f"line {block.line}: `{command}` ended with {status}:\n{said.read_text('utf-8')}"
    if block.shows:
        output = said.read_text(encoding="utf-8")
        missing = first_missing_line(block.shown, output)
        assert missing is None, f"line {block.line}: the output lacks {missing!r}:\n{output}"


def _status_of(command: str, said: Path, folder: Path, variables: dict[str, str], timeout_s: float) -> int:
    """The exit status of a shell command whose output goes to the end of a file; nothing that it started stays."""
    with said.open("a", encoding="utf-8") as output:
        # A file and not a pipe: a server left behind would hold a pipe open, and reading it would never end.
        shell = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return shell.wait(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def _lay_out(page: Path, folder: Path) -> list[Block]:
    """The blocks of a page that are run, with ``folder`` as they expect it."""
    for name in ("examples", "experiments"):
        (folder / name).symlink_to(ROOT / name)
    text = page.read_text(encoding="utf-8")
    for name, body in files_of(text).items():
        (folder / name).write_text(body, encoding="utf-8")
    return blocks_of(text)


@pytest.mark.docs
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_marked_commands_of_a_page_run_as_it_says(page: Path, tmp_path: Path) -> None:
    for block in _lay_out(page, tmp_path):
        if not block.slow:
            _run(block, tmp_path)


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_that_take_minutes_run_as_well(page: Path, tmp_path: Path) -> None:
    blocks = _lay_out(page, tmp_path)
    if not any(block.slow for block in blocks):
        pytest.skip(f"{page.name} has no command that takes minutes")
    for block in blocks:
        _run(block, tmp_path)


def test_a_readme_worth_reading_has_a_command_that_is_run() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert blocks_of(text) or text.count("\n") <= README_NEEDS_A_COMMAND_FROM_LINE


def test_links_inside_the_checkout_lead_somewhere() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))]

    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page, link in links
        if not link.startswith(("http:", "https:", "mailto:")) and not (page.parent / link).exists()
    ]

    assert broken == []


def _page(comment: str, *lines: str) -> str:
    return "\n".join(["# A page", "", comment, "```console", *lines, "```", ""])


def test_a_block_is_read_with_its_options() -> None:
    (block,) = blocks_of(_page("<!-- run: exit=3 shows timeout=9 -->", "$ first", "said", "$ second"))

    assert block == Block(
        line=3, commands=("first", "second"), shown=("said",), exit_status=3, shows=True, timeout_s=9.0
    )


def test_a_file_that_a_page_shows_is_there_for_its_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shown = "<!-- file: case.yaml -->\n```yaml\ncase: a\n```\n\n```yaml\ncase: b\n```\n"
    page.write_text(shown + _page("<!-- run: slow shows -->", "$ cat case.yaml", "case: a"))
    folder = tmp_path / "work"
    folder.mkdir()

    (block,) = _lay_out(page, folder)
    assert block.slow
    _run(block, folder)
    with pytest.raises(ValueError, match="comments say 'file'"):
        files_of("<!-- file: case.yaml -->\n\nSome text.\n\n```yaml\n```\n")


def test_a_block_without_a_comment_is_not_run() -> None:
    assert blocks_of(_page("Some text.", "$ rm -r everything")) == []


@pytest.mark.parametrize(
    "page",
    [
        _page("<!-- run: exti=3 -->", "$ true"),
        _page("<!-- run -->", "no command"),
        "<!-- run -->\n\nSome text between.\n\n```console\n$ true\n```\n",
        "<!-- run -->\n```sh\ntrue\n```\n",
    ],
)
def test_a_mark_that_would_run_nothing_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match=r"comments say 'run'|no command in the block"):
        blocks_of(page)


def test_a_command_that_ends_otherwise_than_shown_fails(tmp_path: Path) -> None:
    (good, bad) = blocks_of(_page("<!-- run: exit=3 -->", "$ exit 3") + _page("<!-- run -->", "$ exit 3"))

    _run(good, tmp_path)
    with pytest.raises(AssertionError, match="ended with 3"):
        _run(bad, tmp_path)


def test_shown_lines_may_differ_in_numbers_and_widths_and_not_in_words() -> None:
    output = "step 12.5 ms   supported\nnoise\nlast  -3 of 4\n"

    assert first_missing_line(("step 9 ms supported", "...", "last +12 of 10"), output) is None
    assert first_missing_line(("step 9 ms rejected",), output) == "step 9 ms rejected"
    assert first_missing_line(("last 1 of 2", "step 1 ms supported"), output) == "step 1 ms supported"
