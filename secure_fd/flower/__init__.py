"""The same two parties on many machines: Flower carries the very bytes of `Client` and `Server`.

roster      what all parties agreed on: a file that everybody holds
keys        what a site or a server keeps for itself; certificates
parties     `Client` and `Server` as a roster has them
envelope    one push and one answer, as bytes
site        a participant across pushes, in one process
journal     a server's sums on disk, and how it comes back
loop        the server's rounds over any courier
server_app, client_app, node   Flower: the ServerApp, the ClientApp, a site's connection
serve, commands                processes of the server, and the command line

Only the last two lines need the extra: pip install "secure-fd[flower]".
"""
