"""The planner: predicts the speed of distribution policies, and chooses one."""
