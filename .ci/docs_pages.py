"""Pages of the site that lie elsewhere or are generated from the code; its logo and version.

mkdocs calls the functions (`hooks` in mkdocs.yml).
"""

import inspect
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_ICON = "services/console/static/icon.svg"
_OF_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Documents of the repository's root that are pages of the site."""
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Show the version beside the name, and link to the repository where pyproject names one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    config.repo_url = project.get("urls", {}).get("Repository", config.repo_url)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the files of the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - mkdocs is there when it calls this

    # At the import mkdocs restores the path.
    sys.path[:0] = [str(ROOT), str(ROOT / "protos"), str(ROOT / ".ci")]
    import docs_metrics  # noqa: PLC0415 - after the path is set
    import docs_protocol  # noqa: PLC0415

    pages = {
        **{page: _of_root(name) for name, page in _OF_ROOT.items()},
        "reference/settings.md": settings(),
        "reference/commands.md": commands(),
        "reference/protocol-buffers.md": docs_protocol.page(ROOT),
        "reference/metrics.md": docs_metrics.page(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    icon = (ROOT / _ICON).read_bytes()
    files.append(File.generated(config, "icon.svg", content=icon))
    return files


def _of_root(name: str) -> str:
    """Return a document of the root as it reads in the folder of documents."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](").replace(f'src="{_ICON}"', 'src="icon.svg"')


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Name what lies outside of the site by its path: the site has no page for it."""
    folder = posixpath.dirname(page.file.src_uri)

    def named(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2]))
        if files.get_file_from_path(target) is not None:
            return match[0]
        if (moved := _OF_ROOT.get(target.removeprefix("../"))) is not None:
            return f"[{match[1]}]({posixpath.relpath(moved, folder)}{match[3] or ''})"
        return f"{match[1]} (`{target.removeprefix('../')}`)" if "`" not in match[1] else match[1]

    return _OUTSIDE.sub(named, markdown)


def settings() -> str:
    """Return the page of cinquefoil.yaml's keys, a table for each section."""
    from services.kit.config import Deployment  # noqa: PLC0415 - after the path is set

    schema = Deployment.model_json_schema()
    sections = {"Deployment": schema, **schema["$defs"]}
    lines = [
        "# Settings",
        "",
        "Every key of `cinquefoil.yaml`; `cinquefoil config schema` prints them.",
    ]
    for name, section in sections.items():
        if "properties" not in section:
            continue
        lines += ["", f"## {name}", "", section.get("description", ""), ""]
        lines += ["| key | values | default | |", "|---|---|---|---|"]
        required = section.get("required", ())
        for key, found in section["properties"].items():
            default = f"`{found['default']}`" if "default" in found else ""
            cells = (
                f"`{key}`",
                " or ".join(dict.fromkeys(_kinds(found))),
                "required" if key in required else default,
                _cleaned(found["description"]).replace("|", "\\|"),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _kinds(found: dict[str, Any]) -> Iterator[str]:
    """Yield what a value may be, sections as links."""
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        yield f"[{name}](#{name.lower()})"
    elif "enum" in found or "const" in found:
        yield ", ".join(f"`{value}`" for value in found.get("enum", [found.get("const")]))
    elif several := found.get("anyOf") or found.get("oneOf"):
        for each in several:
            yield from _kinds(each)
    elif found.get("type") == "array":
        yield f"list of {' or '.join(dict.fromkeys(_kinds(found.get('items', {}))))}"
    elif found.get("type") == "object":
        of = found.get("additionalProperties")
        yield f"by name: {' or '.join(_kinds(of))}" if isinstance(of, dict) else "mapping"
    elif found.get("type") != "null":
        yield f"{found.get('type', 'value')}{_bounds(found)}"


def _bounds(found: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    said = [f"{sign} {found[key]:g}" for key, sign in signs.items() if key in found]
    return f" {', '.join(said)}" if said else ""


def commands() -> str:
    """Return the page of the command line, from the commands' own help."""
    from typer.main import get_command  # noqa: PLC0415 - after the path is set

    from services.cli.main import app  # noqa: PLC0415

    return "# Commands\n\n" + "\n".join(_command(get_command(app), "cinquefoil"))


def _command(command: Any, words: str) -> Iterator[str]:
    below = getattr(command, "commands", {})
    yield f"## `{words}`\n\n{_cleaned(command.help or '')}\n"
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    options = [each for each in shown if each.name != "help"]
    if options:
        yield "| | |\n|---|---|"
        for each in options:
            names = each.opts if each.param_type_name == "option" else [each.name.upper()]
            text = (getattr(each, "help", "") or "").replace("|", "\\|")
            yield f"| `{' '.join([*names, *each.secondary_opts])}` | {text} |"
        yield ""
    for name, each in sorted(below.items()):
        if not each.hidden:
            yield from _command(each, f"{words} {name}")


def _cleaned(text: str) -> str:
    return inspect.cleandoc(text).replace("<", "&lt;")
