"""Which proxies a client answers, and which answers the server keeps."""
