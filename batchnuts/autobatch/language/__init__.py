"""What one-lane programs are written in: functions, structures, and what operators mean on one lane's values."""
