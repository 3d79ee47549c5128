"""The executors: the virtual machine, stackless, and the reference interpreter."""
