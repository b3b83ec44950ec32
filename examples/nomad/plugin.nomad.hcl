# Drumlin as a CSI plugin of Nomad. Nomad asks any instance of a plugin to make a volume, and a local volume is made where
# its node is: each node has a plugin of its own, by its name. Copy this job for every node, with another name in three
# places.
#
#   nomad job run examples/nomad/plugin.nomad.hcl
#
# The clients' own configuration must allow what it asks for (privileged, a path of the host):
#
#   plugin "docker" {
#     config {
#       allow_privileged = true
#       volumes { enabled = true }
#     }
#   }
job "drumlin-node-a" {
  type = "system"

  constraint {
    attribute = "${node.unique.name}"
    value     = "node-a"
  }

  group "agent" {
    task "agent" {
      driver = "docker"

      config {
        image      = "drumlin:0.1.0"
        privileged = true
        args = [
          "agent",
          "--endpoint=unix:///csi/csi.sock",
          "--node=node-a",
          "--state-dir=/var/lib/drumlin",
        ]
        # The state and the images outlive the task. The host's /dev, and where its own volumes are to be mounted, Nomad
        # gives to every CSI plugin by itself.
        volumes = ["/var/lib/drumlin:/var/lib/drumlin"]
      }

      csi_plugin {
        id             = "drumlin-node-a"
        type           = "monolith"
        mount_dir      = "/csi"
        health_timeout = "30s"
      }

      # Changes that run may end.
      kill_timeout = "15s"

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
