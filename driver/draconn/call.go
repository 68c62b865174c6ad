package draconn

import (
	"context"
	"fmt"
	"strings"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Prepare calls NodePrepareResources. Failures of single claims are in the
// response; an error means that the response says nothing. There is no timeout
// but that of ctx; the kubelet's is 45 s.
func (c *Conn) Prepare(ctx context.Context, req *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	if len(c.plugin.clients) == 0 {
		return nil, c.wrap("NodePrepareResources", errNoVersion)
	}
	version := c.plugin.inUse.Load()
	resp, err := c.plugin.clients[version].NodePrepareResources(ctx, req)
	if err != nil {
		return c.prepareAgain(ctx, req, version, err)
	}
	return resp, nil
}

func (c *Conn) prepareAgain(ctx context.Context, req *drav1.NodePrepareResourcesRequest, tried int32, err error) (*drav1.NodePrepareResourcesResponse, error) {
	var resp *drav1.NodePrepareResourcesResponse
	if isUnimplemented(err) {
		resp, err = learn(&c.plugin, tried, err, func(client drav1.DRAPluginClient) (*drav1.NodePrepareResourcesResponse, error) {
			return client.NodePrepareResources(ctx, req)
		})
	}
	if err != nil {
		return nil, c.wrap("NodePrepareResources", err)
	}
	return resp, nil
}

// Unprepare calls NodeUnprepareResources, under the rules of [Conn.Prepare].
func (c *Conn) Unprepare(ctx context.Context, req *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	if len(c.plugin.clients) == 0 {
		return nil, c.wrap("NodeUnprepareResources", errNoVersion)
	}
	version := c.plugin.inUse.Load()
	resp, err := c.plugin.clients[version].NodeUnprepareResources(ctx, req)
	if err != nil {
		return c.unprepareAgain(ctx, req, version, err)
	}
	return resp, nil
}

func (c *Conn) unprepareAgain(ctx context.Context, req *drav1.NodeUnprepareResourcesRequest, tried int32, err error) (*drav1.NodeUnprepareResourcesResponse, error) {
	var resp *drav1.NodeUnprepareResourcesResponse
	if isUnimplemented(err) {
		resp, err = learn(&c.plugin, tried, err, func(client drav1.DRAPluginClient) (*drav1.NodeUnprepareResourcesResponse, error) {
			return client.NodeUnprepareResources(ctx, req)
		})
	}
	if err != nil {
		return nil, c.wrap("NodeUnprepareResources", err)
	}
	return resp, nil
}

// Ping asks the plugin to prepare no claim at all, which every plugin answers
// and none acts upon: it tells whether the service is there and is handled, not
// only whether somebody accepts connections.
func (c *Conn) Ping(ctx context.Context) error {
	_, err := c.Prepare(ctx, &drav1.NodePrepareResourcesRequest{})
	return err
}

// Info asks what the plugin registers as. It is the service of a registration
// socket, which is another endpoint than the one that prepares claims; a plugin
// may serve both on one.
func (c *Conn) Info(ctx context.Context) (*registration.PluginInfo, error) {
	info, err := c.registration.GetInfo(ctx, &registration.InfoRequest{})
	if isUnimplemented(err) {
		err = &serviceError{status: err, services: []string{"pluginregistration.Registration"}}
	}
	if err != nil {
		return nil, c.wrap("GetInfo", err)
	}
	return info, nil
}

// errNoVersion is the answer to a call of a service that the plugin's
// registration did not name.
var errNoVersion = fmt.Errorf("%w: its registration names no version of it", ErrService)

// serviceError keeps the plugin's own words beside ErrService.
type serviceError struct {
	status   error
	services []string // the versions that were tried
}

func (e *serviceError) Error() string {
	return fmt.Sprintf("%v (tried %s): %v", ErrService, strings.Join(e.services, ", "), e.status)
}

func (e *serviceError) Unwrap() []error { return []error{ErrService, e.status} }
