"""The language of one-lane programs: functions, structures, and the meaning of operators on one lane's values."""
