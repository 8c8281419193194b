"""``jlaunch demo``: one rank of four is lost, on this machine, under each policy, for real."""
