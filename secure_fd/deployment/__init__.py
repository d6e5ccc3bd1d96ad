"""The same two parties on many machines: Flower carries the very bytes of `Client` and `Server`.

roster      what all parties agreed on: a file that everybody holds
keys        what a site or the server keeps for itself; certificates
enrol       from the cards of sites to the roster
records     a site's records and the public proxies, from folders of images
parties     `Client` and `Server` as a roster has them
envelope    one push and one answer, as bytes
site        a participant across pushes, in one process
journal     a server's sums on disk, and how it comes back
checkpoints its state after a round, in place of older sums and broadcasts
health      how a run stands, for its operator
loop        the server's rounds over any courier
serving     the server's process over any courier
join        a site's process
serve       Flower's processes around the server
commands    the command line
server_app, client_app, node   Flower: the ServerApp, the ClientApp, a site's connection
app         the folder that `flwr run` takes

Only server_app, client_app and node need the extra: pip install "secure-fd[flower]".
"""
