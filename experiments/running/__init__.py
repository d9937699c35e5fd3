"""Running one run, or many of them: settings to task and process; directory, resume, result; here or on Slurm."""
