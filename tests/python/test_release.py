"""scripts/release.sh ready: which working trees no version is made of."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {"CMakeLists.txt": "project(ferry VERSION 9.8.7 LANGUAGES CXX)\n",
         "CHANGELOG.md": "# Changes\n\n## 9.8.7, 2020-01-31\n\n## 9.8.6, 2020-01-01\n",
         "pyproject.toml": "[project]\n"}


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/release.sh").write_text((ROOT / "scripts/release.sh").read_text())
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(tree, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(["git", "-C", str(tree), *identity, *words], check=True)


def commit(tree):
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--allow-empty", "--message", "x")


def ready(tree):
    done = subprocess.run(["bash", str(tree / "scripts/release.sh"), "ready"], capture_output=True, text=True)
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr


def test_a_clean_tree_is_taken_with_and_without_its_tag(tree):
    assert ready(tree) == ""
    git(tree, "tag", "--annotate", "v9.8.7", "--message", "x")
    assert ready(tree) == ""


def test_a_tag_at_another_commit_is_refused(tree):
    git(tree, "tag", "--annotate", "v9.8.7", "--message", "x")
    commit(tree)
    assert ready(tree).startswith("release.sh: v9.8.7 is ")


def test_changes_of_the_tree_are_refused(tree):
    (tree / "new").write_text("x")
    assert ready(tree) == "release.sh: the working tree differs from HEAD: ?? new \n"


@pytest.mark.parametrize("name, old, new, told", [
    ("CHANGELOG.md", "9.8.7, 2020-01-31", "9.8.7, not released", "CHANGELOG.md has no '## 9.8.7, DATE'"),
    ("CHANGELOG.md", "9.8.7", "9.8.5", "CHANGELOG.md has no '## 9.8.7, DATE'"),
    ("pyproject.toml", "[project]", 'result = "{value}.dev0"', "makes a version of development of 9.8.7"),
])
def test_files_that_are_of_no_version_are_refused(tree, name, old, new, told):
    (tree / name).write_text(FILES[name].replace(old, new))
    commit(tree)
    assert told in ready(tree)
