"""The demo: the whole path, told in the terminal with the real output of kubectl."""
