package server

import (
	"net/netip"

	"github.com/nodelet/nodelet/config"
)

// Settings returns what a Server needs of the configuration. The caller adds the certificate, the clients, the agent
// and the log.
func Settings(c *config.Config) Config {
	s := c.Server
	out := Config{
		Listen:       netip.AddrPortFrom(s.Addr, s.Port),
		Node:         c.Node.Name,
		TLS:          TLS{MinVersion: s.MinTLSVersion, CipherSuites: s.CipherSuites, Curves: s.Curves},
		ClientCAFile: s.ClientCAFile,
		TokenTTL:     s.TokenTTL,
		Anonymous:    s.Anonymous,
		AlwaysAllow:  s.AlwaysAllow,
		AllowedTTL:   s.AllowedTTL,
		DeniedTTL:    s.DeniedTTL,
		Debug:        s.DebugHandlers,
		Streams:      Streams{Idle: s.StreamIdle, WebSockets: c.Gate("ExtendWebSocketsToKubelet")},
	}
	if port := c.Kubelet.ReadOnlyPort; port != 0 {
		out.ReadOnly = netip.AddrPortFrom(s.Addr, uint16(port))
	}
	return out
}
