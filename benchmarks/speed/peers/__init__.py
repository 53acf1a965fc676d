"""The methods of the comparison, one file for each project; ``registry`` lists them."""
