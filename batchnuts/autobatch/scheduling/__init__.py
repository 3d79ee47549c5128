"""Which block the machine runs next: schedules as data, the policies that make them, and what a sweep does with one."""
