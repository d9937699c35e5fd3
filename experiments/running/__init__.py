"""Running one, or many: settings to task and process; directory, resume, result; Slurm."""
