package server

// HeaderTime is how long a client may take for the handshake, and again for the headers.
const HeaderTime = headerTime
