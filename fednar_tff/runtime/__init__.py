"""Where and how computations run."""

from fednar_tff.runtime.native import create_native_context as create_native_context
from fednar_tff.runtime.native import set_native_context as set_native_context
