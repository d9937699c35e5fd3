"""Where and how computations run."""

from fednar_tff.runtime.in_process import create_in_process_context as create_in_process_context
from fednar_tff.runtime.in_process import set_in_process_context as set_in_process_context
from fednar_tff.runtime.native import create_native_context as create_native_context
from fednar_tff.runtime.native import set_native_context as set_native_context
