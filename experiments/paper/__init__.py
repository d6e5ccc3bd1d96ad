"""Studies that regenerate the papers' tables and figures."""
