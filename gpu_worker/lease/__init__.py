"""What a lease does with each step: knows it again, begins it, bears that it fails in part."""
