"""Every autoscaler on the same workloads: what it costs to keep an objective."""
