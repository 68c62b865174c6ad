// Package kubelettest plays the kubelet towards a real DRA plugin, in tests.
package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-lab/dra-lab/driver/draconn"
)

// Plugin is a plugin that has been registered: the connection to it, and what it
// said of itself.
type Plugin struct {
	*draconn.Conn
	Info *registerapi.PluginInfo
}

// Register waits until a registration socket is at path, for as long as ctx
// lasts, asks who is there, connects, calls once and says that the plugin is
// registered. Registered means serving: that very first call has to work. The
// caller has to Close the connection.
func Register(ctx context.Context, path string) (_ *Plugin, err error) {
	if err := appear(ctx, path); err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("register %q: %w", path, err)
	}
	defer func() { err = errors.Join(err, cc.Close()) }()
	client := registerapi.NewRegistrationClient(cc)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("register %q: %w", path, err)
	}
	conn, err := draconn.Open(ctx, info.Endpoint, draconn.WithServices(info.SupportedVersions))
	if err != nil {
		return nil, fmt.Errorf("register %q: %w", path, err)
	}
	if err := conn.WaitServing(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("register %q: %w", path, err), conn.Close())
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil, errors.Join(fmt.Errorf("register %q: %w", path, err), conn.Close())
	}
	return &Plugin{Conn: conn, Info: info}, nil
}

// appear waits for a file, and looks often: the time until then is measured.
func appear(ctx context.Context, path string) error {
	for {
		_, err := os.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for socket %q: %w", path, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}
