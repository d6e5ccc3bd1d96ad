"""What each choice of the record unit is worth, measured on the votes that it releases."""
