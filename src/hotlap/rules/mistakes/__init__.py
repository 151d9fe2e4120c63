"""Rules, one file each, on mistakes in a script that harm what it learns, not its speed."""
