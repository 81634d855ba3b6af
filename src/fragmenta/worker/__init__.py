"""What runs a fragment: it joins, compiles and executes its program."""
