"""The wheel holds the folders under their import names, and works where the checkout is out of reach."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {name: Path(folder) for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()}
TOP_FOLDERS = [folder for folder in FOLDERS.values() if len(folder.parts) == 1]


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    shown = " ".join(str(part) for part in command)[:120]
    assert done.returncode == 0, f"{shown} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel that was built from nothing else than that archive."""
    # A copy, because a build leaves its traces in the tree, and an old build's traces end up in the next wheel.
    copy = tmp_path_factory.mktemp("checkout")
    for entry in ROOT.iterdir():
        if entry.is_file() and entry.name[0] != ".":
            shutil.copy(entry, copy)
    for folder in [*TOP_FOLDERS, Path("docs"), Path("scripts"), Path("tests"), Path("benchmarks")]:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=copy)
    return out


@pytest.fixture(scope="module")
def wheel(archives: Path) -> Path:
    (found,) = archives.glob("*.whl")
    return found


def _files_of_the_folders() -> set[str]:
    """Every file of the package folders, by its name inside the wheel."""
    return {
        f"narrows/{file.relative_to(ROOT)}"
        for folder in TOP_FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_every_file_of_every_folder_and_no_other(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    code_and_data = {name for name in names if ".dist-info/" not in name}

    assert code_and_data == _files_of_the_folders()


def test_the_wheel_carries_the_licence_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"narrows-{PROJECT['project']['version']}.dist-info"

    licence = archive.read(f"{info}/licenses/LICENSE").decode()
    entry_points = archive.read(f"{info}/entry_points.txt").decode()

    assert "Apache License" in licence
    assert "narrows = narrows.flows.cli:main" in entry_points


def test_each_folder_is_typed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {f"narrows/{folder}/py.typed" for folder in TOP_FOLDERS} <= names


def test_every_package_folder_is_declared_to_setuptools() -> None:
    """A new folder needs a line in pyproject.toml; an editable install would hide that it is missing there."""
    on_disk = {init.parent.relative_to(ROOT) for folder in TOP_FOLDERS for init in (ROOT / folder).rglob("__init__.py")}

    assert on_disk == set(FOLDERS.values())
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == set(FOLDERS)


def test_the_source_archive_can_check_itself(archives: Path) -> None:
    (found,) = archives.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    wanted = {"Makefile", "constraints.txt", "pyproject.toml", "LICENSE", "scripts/install.py", "tests/project"}

    assert wanted <= names


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and this environment's dependencies, where the checkout cannot be imported."""
    folder = tmp_path_factory.mktemp("elsewhere")
    environment = folder / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    python = environment / "bin" / "python"
    offline = ("--no-deps", "--no-index", "--no-input", "--disable-pip-version-check", "--quiet")
    _run(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel, cwd=folder)
    # Only a site folder's own .pth files are obeyed. So this line brings the dependencies, and leaves out the .pth file
    # of the editable install that lies among them.
    own = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip()
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(own, "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n", encoding="utf-8")
    return folder


def test_the_installed_command_says_its_version_outside_the_checkout(elsewhere: Path) -> None:
    said = _run(elsewhere / "venv" / "bin" / "narrows", "--version", cwd=elsewhere).stdout

    assert PROJECT["project"]["version"] in said


@pytest.mark.dist
def test_the_installed_command_plays_a_worked_case_outside_the_checkout(elsewhere: Path) -> None:
    command = [elsewhere / "venv" / "bin" / "narrows", "demo", "nothing", "--no-ui"]
    said = _run(*command, cwd=elsewhere).stdout

    assert "There is no regression" in said
    assert (elsewhere / "narrows-demo" / "nothing" / "cases" / "nothing" / "postmortem.md").is_file()


def test_every_installed_module_imports_without_the_checkout(elsewhere: Path, wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    # sitecustomize acts when it is imported; its place in a process is its own test's matter.
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if not name.endswith(("sitecustomize.py", "__main__.py"))
    )
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert '/elsewhere' in module.__file__, f'{name} came from {module.__file__}'\n"
        "print(len(sys.argv) - 1)\n"
    )

    said = _run(elsewhere / "venv" / "bin" / "python", "-c", program, *modules, cwd=elsewhere).stdout

    assert int(said.splitlines()[-1]) == len(modules) >= len(FOLDERS)
