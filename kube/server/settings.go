package server

import (
	"net/netip"

	"github.com/nodelet/nodelet/config"
)

// Settings returns what a Server needs of the configuration. The caller adds the certificate, the clients, the agent
// and the log.
func Settings(c *config.Config) Config {
	k := &c.Kubelet
	out := Config{
		Listen:       c.Server(),
		Node:         c.Node.Name,
		TLS:          c.TLS(),
		ClientCAFile: k.Authentication.X509.ClientCAFile,
		TokenTTL:     k.Authentication.Webhook.CacheTTL.Duration,
		Anonymous:    *k.Authentication.Anonymous.Enabled,
		AlwaysAllow:  k.Authorization.Mode == "AlwaysAllow",
		AllowedTTL:   k.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DeniedTTL:    k.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		Debug:        *k.EnableDebuggingHandlers,
		Streams: Streams{
			Idle:       k.StreamingConnectionIdleTimeout.Duration,
			WebSockets: c.Gate("ExtendWebSocketsToKubelet"),
		},
	}
	if k.ReadOnlyPort != 0 {
		out.ReadOnly = netip.AddrPortFrom(out.Listen.Addr(), uint16(k.ReadOnlyPort))
	}
	return out
}
