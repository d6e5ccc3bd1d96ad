"""A fleet of thousands of clients, simulated: where differential privacy at the client unit pays.

A record's way through the files: `deal` gives it to a client, `votes` lets that client answer
proxies through the public feature map, `release` adds every client's answers and noise, and
`lesson` trains the network that anyone could train from the noisy sums.
"""
