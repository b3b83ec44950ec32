# A volume of the plugin above; a job uses it by `volume "data" { type = "csi", source = "data", … }`.
#
#   nomad volume create examples/nomad/volume.hcl
id           = "data"
name         = "data"
type         = "csi"
plugin_id    = "drumlin-node-a"
capacity_min = "1GiB"
capacity_max = "1GiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type     = "ext4"
  mount_flags = ["noatime"]
}

parameters {
  class = "default"
}
