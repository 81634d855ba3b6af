"""Drawing without other packages: colours, flowcharts of plans, and pieces of HTML for notebooks."""
