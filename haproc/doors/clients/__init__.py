"""The clients' doors: statements, rows, sessions, jobs and the archive."""
