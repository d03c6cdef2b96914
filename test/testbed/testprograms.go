package testbed

import (
	"context"
	"errors"
)

// Registry returns the path of a registry for images, the one of the Distribution project.
func (c *Cache) Registry(ctx context.Context) (string, error) {
	return c.DebianFile(ctx, "docker-registry", "usr/bin/docker-registry")
}

// Prometheus returns the path of a Prometheus server.
func (c *Cache) Prometheus(ctx context.Context) (string, error) {
	return c.DebianFile(ctx, "prometheus", "usr/bin/prometheus")
}

// Promtool returns the path of Prometheus' program that checks metrics and rules.
func (c *Cache) Promtool(ctx context.Context) (string, error) {
	return c.DebianFile(ctx, "prometheus", "usr/bin/promtool")
}

// TestPrograms fetches all that tests run beside a testbed, for tests in a machine without a network.
func (c *Cache) TestPrograms(ctx context.Context) error {
	var all error
	for _, program := range []func(context.Context) (string, error){c.Registry, c.Prometheus, c.Promtool} {
		_, err := program(ctx)
		all = errors.Join(all, err)
	}
	return all
}
