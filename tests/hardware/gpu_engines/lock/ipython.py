"""Stands in for IPython: SGLang shows pictures in notebooks with it, which no server does."""

import sys
import types

display = types.ModuleType("IPython.display")
display.HTML = display.display = None
sys.modules["IPython.display"] = display
