"""The paper's bounds and rates, one function per statement, each with its correction, if there is one."""
