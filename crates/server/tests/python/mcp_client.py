"""`stonechat mcp` by the client of the MCP SDK over stdio."""

import asyncio
import contextlib
import os

import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client

from harness import LIMIT_S, check, contains, equal, expect
