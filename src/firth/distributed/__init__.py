"""This process and its host; several processes as one job: joining, and noticing a death."""
