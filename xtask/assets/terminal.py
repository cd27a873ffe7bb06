"""Runs commands and draws what a terminal shows as SVG.

Usage: terminal.py OUT.svg COMMAND... ; each COMMAND is shown as written and run by a shell.
"""

import subprocess
import sys

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

# Rich's template with fonts of the viewer instead of fonts from the network.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""

out, commands = sys.argv[1], sys.argv[2:]
console = Console(record=True, width=96, file=open("/dev/null", "w"))
for command in commands:
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
    console.print(Text.from_ansi(ran.stdout.strip()))
    console.print()
svg = console.export_svg(title="stonechat", theme=MONOKAI, code_format=FORMAT, unique_id="terminal")
with open(out, "w") as file:
    file.writelines(line.rstrip() + "\n" for line in svg.splitlines())
